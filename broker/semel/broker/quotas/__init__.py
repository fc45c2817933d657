"""How much principals and topics may use of a broker: rates, fair turns, what waits meanwhile."""
