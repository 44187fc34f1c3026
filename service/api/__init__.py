"""HTTP: JSON in, JSON out. All validation of strangers' input and all problem documents live here."""
