"""The only writers of watched Flink clusters: they store registrations, actions and answers."""
