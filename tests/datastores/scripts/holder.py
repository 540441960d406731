"""Hold a store for writing until killed."""

import sys
import time

from groundspeed.datastores.writer import TokenDatastoreWriter

writer = TokenDatastoreWriter.open(sys.argv[1])
print("held", flush=True)
time.sleep(60)
