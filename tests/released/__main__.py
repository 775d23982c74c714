"""Write the bytes of newly released schemas."""

from tests.released import write_missing

for name in write_missing():
    print(f"wrote the bytes of {name}")
