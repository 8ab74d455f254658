"""What travels: HTTP/1.1 both ways, server-sent events, OpenAI's message formats."""
