/*
 * Shared by the files of the store's server only.
 *
 *   server.c       streams: hello, requests, end
 *   server_ops.c   what a request does
 *   server_get.c   items out: by descriptor, by the kernel, or through memory
 *   server_put.c   items in: from the stream, or from memory that the client shares
 */
#ifndef DS_STORE_SERVER_IMPL_H
#define DS_STORE_SERVER_IMPL_H

#include <stdatomic.h>

#include "frame/messages.h"
#include "store/pool.h"
#include "store/server.h"
#include "store/store_impl.h"

struct store_server {
	struct store *store;
	struct store_server_options o;
	struct store_pool pool;
	struct store_server_counts counts;
	int bell;                 /* readable when all is to end */
	_Atomic bool draining;
};

struct store_client {
	struct store_server *sv;
	struct store_session *ss;
	const char *peer;
	int in, out;
	bool socket;              /* waits have an end */
	bool local;               /* a unix socket: descriptors can be passed */
	bool greeted, ended;
	struct frame_reader *r;
	struct frame_writer *w;
	struct frame_parser *parser;
	struct meta_builder *meta, *item_meta;
	int64_t frame_until;      /* when the frame that is being read must be complete; 0: none is */
	struct store_buffer payload; /* of the put that is being read */
	int64_t payload_since;
	uint64_t payload_from, payload_stream; /* the reader's bytes then; the request */
	struct ds_err *refused;
	const uint8_t *shared;    /* [shared_bytes] the client's memory, NULL: none; it may change at any time */
	size_t shared_bytes;
	uint8_t *here;            /* [STORE_KEYS_MAX], when needed */
	uint8_t front[STORE_MESSAGE_HEAD];
};

/* Answers go out; DS_TEMP where the client takes nothing. */
int client_send(struct store_client *c, uint64_t stream, const struct iovec *iov, int n, struct ds_err *err);
int client_sent(struct store_client *c, int rc, struct ds_err *err); /* of a write that c->w did */
/* An ERROR frame; of stream 0 it is the end of the connection. */
int client_refuse(struct store_client *c, uint64_t stream, const struct ds_err *why, struct ds_err *err);

/* The complete request f; what is wrong with it is answered; an error is the connection's. */
int client_request(struct store_client *c, const struct frame *f, enum store_op op, struct ds_err *err);
/* why: of the request, err: of the connection. */
int client_put(struct store_client *c, const struct frame *f, struct ds_err *err, struct ds_err *why);
int client_memory(struct store_client *c, uint64_t stream, struct ds_err *err, struct ds_err *why);
void client_memory_free(struct store_client *c);
/* An ok frame that says no more. */
int client_ok(struct store_client *c, uint64_t stream, struct ds_err *err);
void client_begin_ok(struct store_client *c); /* in c->meta */
int client_get(struct store_client *c, uint64_t stream, const struct store_request *q, struct ds_err *err);
/* Before a call of the store: it has so long. */
void client_deadline(struct store_client *c);

#endif
