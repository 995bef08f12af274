"""What runs beside the notebook; never torch."""
