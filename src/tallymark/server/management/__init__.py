"""RabbitMQ's management interface, as of 3.10."""
