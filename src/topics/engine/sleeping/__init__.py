"""Topics that are left in their snapshot until somebody asks for them."""
