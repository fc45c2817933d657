"""What Kafka's producers send, on its way to the brokers."""
