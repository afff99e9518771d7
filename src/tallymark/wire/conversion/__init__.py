"""Messages, values and addresses of one protocol in the words of another: what brokers and clients
have in common of docs/conversion.md. Values in, values out; bytes are the callers' business."""
