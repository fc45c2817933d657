"""The background work of a replica: retention, delayed release, transactions, queue copies."""
