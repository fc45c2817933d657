"""`./run demo`: a real cluster, a real file, a killed master, a killed loader, and the proof."""
