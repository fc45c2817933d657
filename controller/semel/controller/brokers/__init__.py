"""Broker groups as the controller knows them: reports, foundings, routes, calls to them."""
