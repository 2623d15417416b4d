"""What both sides of a contract share: prices, documents, signatures, proofs."""
