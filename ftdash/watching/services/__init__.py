"""The only writers of watched queries: they store registrations, reports and what files show."""
