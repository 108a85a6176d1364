"""Storm's acking in a subtask: anchors, acks and the acker itself."""
