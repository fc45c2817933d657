"""Who is at the other end: identities, certificates, TLS."""
