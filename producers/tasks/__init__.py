"""Tasks: repositories with real tests that an agent works on."""
