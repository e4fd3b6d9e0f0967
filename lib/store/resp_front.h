/*
 * A store as a server of the Redis protocol: values with names, so that tools that know Redis can use it.
 *
 * A name becomes a key by XXH3-128; the item's meta has the whole name ("name"), which is compared whenever the item is
 * read, so that a name whose key is another's is a miss.  Values can be replaced; they are checked before a byte of
 * them is sent.  The store may forget them at any time, as a Redis does that evicts.
 */
#ifndef DS_STORE_RESP_FRONT_H
#define DS_STORE_RESP_FRONT_H

#include "store/store.h"

enum {
	RESP_NAME_MAX = 8 << 10,       /* bytes of a value's name */
	RESP_ARGS_MAX = 16 << 10,      /* of one command */
	RESP_ARG_BYTES_MAX = 8 << 20,  /* of them together, but for values */
};

struct resp_options {
	uint64_t max_value; /* of one value; 0: 256 MiB */
	uint64_t memory;    /* of values on their way, all connections together; 0: 1 GiB */
	struct store_pool *pool; /* of so much memory, which others use too; NULL: one of its own */
	int64_t stall_ns;   /* who neither sends the rest of a command nor takes a reply for so long is left; 0: 30 s */
	int64_t store_ns;   /* deadline of each call of the store; 0: none */
	unsigned workers;   /* threads of a store of files that do not wait at once; 0: as the processors suggest */
};

/* What all connections have in common.  The store outlives it. */
struct resp_front;
int resp_front_new(struct resp_front **f, struct store *s, const struct resp_options *o, struct ds_err *err);
void resp_front_free(struct resp_front *f);
/* Commands that begin from now on are refused. */
void resp_front_drain(struct resp_front *f);
/*
 * Serves one connected socket (unix or TCP) to its end, for which the calling thread waits; does not close fd.  peer
: for messages.
 * To end it from another thread: shutdown(fd, SHUT_RD); what was received before is answered still.  0: the client has
 * gone or been asked to; DS_PROTO: it spoke something else (it was told); DS_TEMP: it stalled; else as store.h says.
 */
int resp_serve(struct resp_front *f, int fd, const char *peer, struct ds_err *err);

struct resp_counts { uint64_t connections, clients, commands, errors, collisions; }; /* clients: now */
void resp_front_counts(struct resp_front *f, struct resp_counts *c);

#endif
