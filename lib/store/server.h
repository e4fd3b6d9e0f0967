/*
 * The server's side of store frames: requests on one stream, answers on the other, in order, for any kind of store.
 * Blocking; a thread for each client.
 *
 * A request that cannot be done is answered by an ERROR frame and ends there; what is no DSF1 stream, or no stream of
 * store frames, ends the connection.
 */
#ifndef DS_STORE_SERVER_H
#define DS_STORE_SERVER_H

#include "frame/hello.h"
#include "frame/messages_store.h"
#include "store/pool.h"
#include "store/store.h"

struct store_server_options {
	const char *program;
	uint64_t max_frame;  /* largest payload, 0: 256 MiB */
	uint64_t memory;     /* of payloads in flight, all connections together; 0: 1 GiB */
	int64_t peer_ns;     /* a client that stands still within a request, or takes no answer, is dropped */
};

struct store_server_count { _Atomic uint64_t requests, errors, ns; };
struct store_server_counts {
	struct store_server_count op[STORE_OP_MEMORY + 1]; /* op 0: of a kind that is not known */
	_Atomic uint64_t clients, connections;            /* now, and so far */
	_Atomic uint64_t sent_bytes, received_bytes, fd_bytes; /* payloads: out, in, and by descriptor */
};

struct store_server; /* what all connections share; the store outlives it */
int store_server_new(struct store_server **sv, struct store *s, const struct store_server_options *o,
	struct ds_err *err);
void store_server_free(struct store_server *sv);
/* From now on requests are refused (DS_TEMP); every client is told END and served no more as soon as its request is
 * done. */
void store_server_drain(struct store_server *sv);
struct store_server_counts *store_server_counts(struct store_server *sv);
struct store_pool *store_server_pool(struct store_server *sv); /* for others who serve the same clients */
uint64_t store_server_memory(struct store_server *sv); /* taken by payloads now */

/*
 * Serves one client to its end.  in and out: one socket, or two pipes or files, which are not closed; peer: for
 * messages.  *refused (may be NULL): the first request that was refused, code 0 if none.  0: END was read and written;
 * DS_DATA, DS_PROTO: of a stream that is wrong or ends early; DS_SIGPIPE: the reader of the answers has gone; DS_TEMP:
 * the client stood still; DS_IO, DS_OS.
 */
int store_serve(struct store_server *sv, int in, int out, const char *peer, struct ds_err *refused,
	struct ds_err *err);

#endif
