"""Bodies as data: JSON, CSV, MessagePack, Avro and Protobuf as columns of Arrow."""
