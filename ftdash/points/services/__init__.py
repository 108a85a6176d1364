"""What people ask about recovery points; workers carry out what takes long."""
