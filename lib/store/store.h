/*
 * A store of items (item.h), by address:
 *
 *   dir:PATH                    segment files in a directory, shared by any number of processes (dir.h)
 *   unix:PATH, tcp:HOST:PORT    a ds-kvstore
 *   redis://HOST:PORT[/DB]      a Redis or Valkey server;  redis-cluster://HOST:PORT[,HOST:PORT...]  a cluster
 *
 * A store is opened once and used by any threads at once, each through a session of its own: for a store behind a
 * connection that is the connection.  Calls wait for their end, at most until the session's deadline (DS_TEMP).  A
 * store may forget anything at any time; what it gives is what was put, or it gives nothing: a payload whose checksum
 * is wrong is a miss, is dropped where that is possible, and is counted.
 *
 * Errors: DS_TEMP full, busy, too late; DS_UNAVAILABLE the peer is not there (the next call tries again); DS_IO;
 * DS_PROTO; DS_OS; DS_USAGE, DS_CONFIG of an address or a directory.  After any error the session can be used on.
 */
#ifndef DS_STORE_STORE_H
#define DS_STORE_STORE_H

#include "store/item.h"

enum { STORE_KEYS_MAX = 16384 }; /* in one call */
#define STORE_NO_LIMIT UINT64_MAX /* a capacity: the disk's */

enum store_admission { STORE_ADMIT_ALL, STORE_ADMIT_SECOND /* what was asked for before */ };

struct store_options {
	uint64_t capacity;       /* dir: most bytes of the files, which it keeps to from then on; 0: what it kept to */
	uint64_t segment;        /* dir: bytes of one file, 0: what suits the capacity */
	bool sync;               /* every put and deletion is on disk before it is answered */
	bool zstd;               /* dir: payloads are compressed */
	enum store_admission admission;
	uint64_t ttl_ns;         /* of items that say nothing else; 0: none */
	bool read_only;          /* dir: nothing is written, removed, or locked against others */
	const char *password;    /* Redis: the first line of this file; NULL: none */
	uint64_t max_frame;      /* largest payload, 0: 256 MiB */
};

struct store;
struct store_session;

/* DS_USAGE: no such kind of address.  A peer that is not there yet is no error. */
int store_open(struct store **s, const char *addr, const struct store_options *o, struct ds_err *err);
void store_close(struct store *s); /* after its sessions; what was put is written out */
/* For want of descriptors: closes files that nobody uses now; false: there are none. */
bool store_spare(struct store *s);
int store_begin(struct store_session **ss, struct store *s, struct ds_err *err);
void store_end(struct store_session *ss);
/* CLOCK_MONOTONIC; 0: none (as it begins). */
void store_deadline(struct store_session *ss, int64_t mono_ns);
/* From any thread: no call of the session waits longer than until then, not even one that waits now.  It stays so. */
void store_hurry(struct store_session *ss, int64_t mono_ns);

/* How many of keys [n] are there in a row from the first; here [n] (may be NULL): which of all of them.  Only a get is
 * certain. */
int store_has(struct store_session *ss, const struct store_key *keys, size_t n, uint8_t *here, size_t *prefix,
	struct ds_err *err);

/* Where the items of a get go.  Called in the order of the keys, from the calling thread. */
struct store_sink {
	void *ctx;
	/* Item i is there and its meta is right: memory for its `size` bytes, or NULL: it is not wanted, and the get
	 * ends before it. */
	void *(*place)(void *ctx, size_t i, const struct store_item *item);
	/* Its payload lies there, plain and checked.  False: no more. */
	bool (*done)(void *ctx, size_t i);
};
/* Items from the first key on, up to the first that is missing; *got of them.  An error after some is an error with
 * *got set. */
int store_get(struct store_session *ss, const struct store_key *keys, size_t n, const struct store_sink *sink,
	size_t *got, struct ds_err *err);

enum store_put_result { STORE_STORED, STORE_ALREADY, STORE_NOT_ADMITTED };
struct store_put {
	struct store_key key;
	const struct meta_builder *meta; /* what is to be said besides the item's own keys, or NULL */
	const struct iovec *iov;         /* [iovs] the payload */
	int iovs;
	unsigned element;                /* bytes of an element of it, for compression; 0: not known */
	uint64_t ttl_ns;                 /* 0: the store's */
	bool sync;                       /* on disk before the answer */
	bool replace;                    /* though the key is there: a value that is not named by its content */
	bool exact;                      /* the answer counts: others' latest are looked for, it is admitted */
};
/* The bytes are copied or written before it returns. */
int store_put(struct store_session *ss, const struct store_put *p, enum store_put_result *how, struct ds_err *err);
int store_del(struct store_session *ss, const struct store_key *key, bool *was, struct ds_err *err);
/* It may not be what was put: the store reads it again, and it is no longer there if so.  False: this kind of store
 * does not do that. */
bool store_doubt(struct store_session *ss, const struct store_key *key);
/* Pinned items are not evicted until they are unpinned as often, or the session ends.  DS_TEMP: too much is pinned.
 * Of a key that is not there, and by stores that have no pins (Redis), nothing is done. */
int store_pin(struct store_session *ss, const struct store_key *keys, size_t n, bool pin, struct ds_err *err);

struct store_stat {
	uint64_t items, bytes, capacity;  /* bytes: of the files */
	uint64_t has, has_found;          /* keys asked for, and there */
	uint64_t hits, misses, hit_bytes; /* of gets */
	uint64_t puts, put_bytes, already, not_admitted, refused;
	uint64_t evicted, evicted_bytes, moved_bytes; /* moved: written again since still wanted */
	uint64_t expired, corrupt;        /* dropped as such */
	uint64_t pinned_bytes;
	uint64_t index_bytes, segments;
};
int store_stat(struct store_session *ss, struct store_stat *st, struct ds_err *err);
/* For reports: each counter with its name. */
struct store_counter { const char *name, *help; size_t offset; bool gauge; };
extern const struct store_counter store_counters[]; /* ended by name NULL */

#endif
