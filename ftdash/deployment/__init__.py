"""An installation on a server: its systemd units, its health addresses, and its doctor."""
