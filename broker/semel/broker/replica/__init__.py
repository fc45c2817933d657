"""One replica at work: what it proposes, persists, sends, applies and answers."""
