/* What the kinds of stores have in common; store.c calls these after it has checked the arguments. */
#ifndef DS_STORE_STORE_IMPL_H
#define DS_STORE_STORE_IMPL_H

#include "store/store.h"

/* Where an item lies in a file: for those that hand over descriptors, or let the kernel send the bytes. */
struct store_ref {
	int fd;               /* the store's, open until store_release; reading it never changes its position */
	uint64_t segment;     /* number of that file in this process: the same number is the same file, for ever */
	uint64_t offset;      /* of the frame */
	uint32_t head_bytes;  /* of its head, meta and bin header: the payload lies behind them */
	uint32_t data_bytes;  /* of its payload as it lies there */
	void *hold;
};

struct store_ops {
	const char *scheme;   /* "dir:", "redis://" */
	int (*open)(struct store **s, const char *rest, const struct store_options *o, struct ds_err *err);
	void (*close)(struct store *s);
	int (*begin)(struct store_session **ss, struct store *s, struct ds_err *err);
	void (*end)(struct store_session *ss);
	int (*has)(struct store_session *ss, const struct store_key *keys, size_t n, uint8_t *here, size_t *prefix,
		struct ds_err *err);
	int (*get)(struct store_session *ss, const struct store_key *keys, size_t n, const struct store_sink *sink,
		size_t *got, struct ds_err *err);
	int (*put)(struct store_session *ss, const struct store_put *p, enum store_put_result *how, struct ds_err *err);
	int (*del)(struct store_session *ss, const struct store_key *key, bool *was, struct ds_err *err);
	int (*pin)(struct store_session *ss, const struct store_key *keys, size_t n, bool pin, struct ds_err *err);
	int (*stat)(struct store_session *ss, struct store_stat *st, struct ds_err *err);
	/* Stores of files: where the item lies, counted as a hit; DS_NO: nowhere.  The head is not looked at.  NULL:
	 * the store has none. */
	int (*find)(struct store_session *ss, const struct store_key *key, struct store_ref *ref, struct ds_err *err);
	void (*release)(struct store_session *ss, struct store_ref *ref);
	/* Whoever read the item says that its bytes are wrong: it is read again, and dropped if so. */
	void (*doubt)(struct store_session *ss, const struct store_key *key);
	/* NULL, or: closes files that nobody uses now; false: there are none. */
	bool (*spare)(struct store *s);
};

/* Each kind begins with these. */
struct store {
	const struct store_ops *ops;
	struct store_options o;
};
/* A service whose store is itself, or one whose store it is, would ask for ever. */
enum { STORE_HOPS_MAX = 8 };

struct store_session {
	struct store *store;
	int64_t deadline;     /* CLOCK_MONOTONIC, 0: none */
	_Atomic int64_t hurry; /* the same, of other threads; the earlier counts */
	unsigned hops;        /* of whom it is for: services between him and this store */
};

/* The deadline, 0: none.  Another thread may bring it forward: waits look at it again every STORE_LOOK_NS. */
#define STORE_LOOK_NS ((int64_t)50000000)
static inline int64_t store_earlier(int64_t a, int64_t b) { return !a || (b && b < a) ? b : a; }
static inline int64_t store_until(const struct store_session *ss) { return store_earlier(ss->deadline, ss->hurry); }

/* Whom this thread tells before it waits for others or for a disk, perhaps at length, and when that is over. */
struct store_waits { void (*tell)(void *ctx, bool begin); void *ctx; };
extern _Thread_local struct store_waits store_waits;
static inline void store_wait(bool begin)
{
	if (store_waits.tell)
		store_waits.tell(store_waits.ctx, begin);
}

const char *store_put_result_name(enum store_put_result how); /* "stored" */

extern const struct store_ops store_dir, store_remote_unix, store_remote_tcp, store_redis, store_redis_cluster;

#endif
