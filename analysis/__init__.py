"""Tables -> numbers -> pictures. Imports no torch, no Lightning, no model: it reads files."""
