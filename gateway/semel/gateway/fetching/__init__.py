"""What Kafka's consumers ask for, on its way from the brokers."""
