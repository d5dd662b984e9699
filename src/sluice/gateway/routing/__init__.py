"""Routing documents: kept in Postgres, followed by every process.

records    a document as it is kept, with its versions (values)
checks     what a document must fit (pure)
store      documents in Postgres
sync       keeps a gateway's routing table as the store has it
preview    where the last requests would have gone
configured the configuration's documents
"""
