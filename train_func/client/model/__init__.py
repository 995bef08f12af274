"""What is done with a published model: fetched, loaded, put in place under a name, pushed to the Hub."""
