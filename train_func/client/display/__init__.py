"""What people see of a job: plain lines, a panel in a notebook or terminal, a page."""
