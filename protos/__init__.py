"""The contract between a ps and its clients: messages, bytes, errors, the cluster description. Both sides import this."""
