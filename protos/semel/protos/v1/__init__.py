"""Version 1 of the protocol: `.proto` files and the modules generated from them."""
