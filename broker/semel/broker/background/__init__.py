"""What a replica does beside serving: retention, delayed release, transactions, queue copies."""
