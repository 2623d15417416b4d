"""Tools of contributors: set-up, lock files, generated files."""
