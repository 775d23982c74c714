"""Who learns: a Megatron-core trainer on the assembler's batches.

Importing the package imports neither torch nor Megatron; its modules import what they need.
"""
