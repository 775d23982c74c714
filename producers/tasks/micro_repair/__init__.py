"""micro_repair: small repositories with one wrong operator, for a policy of 32 tokens.

vocabulary.py   the tokens, and the functions and operators that they stand for
bugs.py         which repositories there are, and how they are split
repository.py   the files of one, and the commands that view, edit and test it
scaffold.py     tokens to commands, and what they printed to tokens
transitions.py  what a repository does, without running it: pass rates, traces for SFT
task.py         the task: setup, gold, verdict
"""
