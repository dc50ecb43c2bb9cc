"""Other stream processors that decide the same requests, written as their users would write them."""
