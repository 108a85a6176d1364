"""People's requests about recovery points; workers carry out the long ones."""
