"""Tool calls on their way through the gateway: asked for, found in raw text, judged."""
