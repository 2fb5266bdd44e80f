"""Speed, always as ratios measured in one run: against a copy of the same array, and against peers."""
