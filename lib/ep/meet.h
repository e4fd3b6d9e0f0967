/*
 * What ranks say to each other before they are connected as a unit: at the unit's address, and as the first bytes of
 * the connections between them.
 *
 * At the address: a rank says HELLO, with all that must agree; the answer is the TABLE of who is where, or a REFUSAL.
 * A rank of a unit that runs and whose address somebody else holds says HELLO with its own table behind it, and may be
 * answered with TAKEN: who holds the address comes to its unit.  All comes from outside and is checked here.
 */
#ifndef DS_EP_MEET_H
#define DS_EP_MEET_H

#include "base/mem.h"
#include "ep/unit.h"

enum { MEET_TERMS = 24, MEET_ADDR = 128 };
enum meet_type { MEET_HELLO = 1, MEET_TABLE, MEET_REFUSAL, MEET_TAKEN, MEET_QUIT };

struct meet_entry {
	uint64_t incarnation; /* of the process, so that one that was started again is another */
	uint32_t rank, unused;
	char addr[MEET_ADDR]; /* where it listens for the others: "@NAME", "tcp:HOST:PORT" */
};

struct meet_table {
	uint64_t nonce;       /* the unit's secret */
	uint64_t epoch;       /* 0: it begins now */
	uint64_t known;       /* the greatest plan */
	uint32_t world, count;
	uint32_t holder, unused; /* of the address; world: nobody */
	struct meet_entry entry[]; /* [count], by rank */
};

struct meet_hello {
	struct meet_entry self;
	uint64_t floor;       /* greatest epoch that it has spoken of */
	uint32_t world, terms;
	struct unit_term term[MEET_TERMS]; /* [terms] */
};

struct meet_refusal { uint32_t code, unused; char text[1000]; };

/* The first bytes of a connection between two ranks. */
struct meet_intro {
	uint32_t magic, join;
	uint64_t nonce, incarnation; /* of the unit, of the rank that it is for */
	struct meet_entry from;
};
enum { MEET_INTRO_MAGIC = 0x31555344 };

size_t meet_table_bytes(size_t count);
/* What arrived is one, with strings that end; else false. */
bool meet_table_ok(const void *p, size_t n, size_t world);
bool meet_hello_ok(const void *p, size_t n, const struct meet_table **table); /* *table NULL: none behind it */
bool meet_refusal_ok(const void *p, size_t n);
bool meet_intro_ok(const struct meet_intro *i, size_t world);

/* Does `other` fit?  Else which rank differs from which in what: DS_CONFIG, DS_PROTO. */
int meet_agree(const char *addr, const struct meet_hello *own, const struct meet_hello *other, struct ds_err *err);
/* "rank 3", "ranks 1, 2 and 5" */
void meet_names(const struct ranks *who, char *text, size_t cap);

/* ---- messages on a stream that does not block ---- */

struct meet_io { int fd; bool seen; struct buf in, out; };

void meet_io_free(struct meet_io *io); /* closes the descriptor, too */
/* 1: a message is there (data valid until the next call); 0: not yet; -1: the stream ended or sends nonsense. */
int meet_read(struct meet_io *io, enum meet_type *type, const void **data, size_t *n);
/* Queues one of two parts (b may be NULL) and sends what it can. */
bool meet_write(struct meet_io *io, enum meet_type type, const void *a, size_t na, const void *b, size_t nb);
bool meet_flush(struct meet_io *io); /* false: the stream is broken */

/* ---- sockets between ranks ---- */

/* Listens beside a unix address (host NULL: a name of its own, not in the file system) or on a port of host. */
int meet_listen(const char *host, bool anywhere, uint64_t incarnation, int *fd, char addr[MEET_ADDR],
	struct ds_err *err);
/* Begins to connect. */
int meet_connect(const char *addr, int *fd, struct ds_err *err);
/* The host by which this end of a TCP connection is known, as in an address; "" for others. */
void meet_host(int fd, char *host, size_t cap);

#endif
