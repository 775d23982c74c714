"""Instances in the style of SWE-bench and SWE-smith, with bash as the tool.

instances.py   rows of a .jsonl or .json file, checked
sources.py     where the repository comes from: an image, a git repository, a folder
prompts.py     what the policy is told
chat.py        the model's chat template, token by token
scaffold.py    completions to commands, and what they printed to tokens
commands.py    what is run in a sandbox: setup, diff, patches, tests
results.py     what the tests said
task.py        the task: setup, gold patch and verdict
"""
