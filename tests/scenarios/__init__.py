"""Text scripts with expected output."""
