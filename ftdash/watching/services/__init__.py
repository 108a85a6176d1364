"""The only writers of watched queries: what people register, listeners report, files show."""
