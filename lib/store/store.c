/* Stores by address: arguments are checked here, what is done is its kind's. */
#include <string.h>

#include "store/store_impl.h"

/* Each kind adds itself here. */
static const struct store_ops *const kinds[] = {
	&store_dir, &store_remote_unix, &store_remote_tcp, &store_redis, &store_redis_cluster,
};

_Thread_local struct store_waits store_waits;

int store_open(struct store **s, const char *addr, const struct store_options *o, struct ds_err *err)
{
	*s = NULL;
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
		size_t n = strlen(kinds[i]->scheme);

		if (strncmp(addr, kinds[i]->scheme, n) != 0)
			continue;
		if (!addr[n])
			return err_set(err, DS_USAGE, "'%s' is no address of a store: nothing follows '%s'", addr,
				kinds[i]->scheme);
		return kinds[i]->open(s, addr + n, o, err);
	}
	return err_set(err, DS_USAGE, "'%s' is no address of a store: dir:PATH, unix:PATH, tcp:HOST:PORT, "
		"redis://HOST:PORT, redis-cluster://HOST:PORT", addr);
}

void store_close(struct store *s)
{
	if (s)
		s->ops->close(s);
}

bool store_spare(struct store *s)
{
	return s->ops->spare && s->ops->spare(s);
}

int store_begin(struct store_session **ss, struct store *s, struct ds_err *err)
{
	*ss = NULL;
	return s->ops->begin(ss, s, err);
}

void store_end(struct store_session *ss)
{
	if (ss)
		ss->store->ops->end(ss);
}

void store_deadline(struct store_session *ss, int64_t mono_ns)
{
	ss->deadline = mono_ns;
}

void store_hurry(struct store_session *ss, int64_t mono_ns)
{
	ss->hurry = mono_ns;
}

static int many(size_t n, struct ds_err *err)
{
	return n > STORE_KEYS_MAX ? err_set(err, DS_USAGE, "%zu keys at once, the limit is %d", n, STORE_KEYS_MAX) : 0;
}

int store_has(struct store_session *ss, const struct store_key *keys, size_t n, uint8_t *here, size_t *prefix,
	struct ds_err *err)
{
	*prefix = 0;
	if (many(n, err))
		return err->code;
	return n ? ss->store->ops->has(ss, keys, n, here, prefix, err) : 0;
}

int store_get(struct store_session *ss, const struct store_key *keys, size_t n, const struct store_sink *sink,
	size_t *got, struct ds_err *err)
{
	*got = 0;
	if (many(n, err))
		return err->code;
	return n ? ss->store->ops->get(ss, keys, n, sink, got, err) : 0;
}

static int read_only(const struct store_session *ss, struct ds_err *err)
{
	return ss->store->o.read_only ? err_set(err, DS_USAGE, "this store was opened to be read only") : 0;
}

int store_put(struct store_session *ss, const struct store_put *p, enum store_put_result *how, struct ds_err *err)
{
	*how = STORE_NOT_ADMITTED;
	return read_only(ss, err) ? err->code : ss->store->ops->put(ss, p, how, err);
}

int store_del(struct store_session *ss, const struct store_key *key, bool *was, struct ds_err *err)
{
	*was = false;
	return read_only(ss, err) ? err->code : ss->store->ops->del(ss, key, was, err);
}

bool store_doubt(struct store_session *ss, const struct store_key *key)
{
	if (!ss->store->ops->doubt)
		return false;
	ss->store->ops->doubt(ss, key);
	return true;
}

int store_pin(struct store_session *ss, const struct store_key *keys, size_t n, bool pin, struct ds_err *err)
{
	if (many(n, err))
		return err->code;
	return n && ss->store->ops->pin ? ss->store->ops->pin(ss, keys, n, pin, err) : 0;
}

int store_stat(struct store_session *ss, struct store_stat *st, struct ds_err *err)
{
	memset(st, 0, sizeof *st);
	return ss->store->ops->stat(ss, st, err);
}

#define COUNTER(field, text, gauge) { #field, text, offsetof(struct store_stat, field), gauge }

const struct store_counter store_counters[] = {
	COUNTER(items, "items that are there", true),
	COUNTER(bytes, "bytes of the files", true),
	COUNTER(capacity, "bytes that the files may have", true),
	COUNTER(has, "keys that were asked for without their items", false),
	COUNTER(has_found, "of them, there", false),
	COUNTER(hits, "items asked for and there", false),
	COUNTER(misses, "items asked for and not there", false),
	COUNTER(hit_bytes, "bytes of payloads given", false),
	COUNTER(puts, "items stored", false),
	COUNTER(put_bytes, "bytes of their payloads", false),
	COUNTER(already, "items put that were there", false),
	COUNTER(not_admitted, "items put that nobody had asked for", false),
	COUNTER(refused, "items put that were refused, or failed", false),
	COUNTER(evicted, "items given up for lack of room", false),
	COUNTER(evicted_bytes, "bytes of their payloads", false),
	COUNTER(moved_bytes, "bytes written again since they are still wanted", false),
	COUNTER(expired, "items dropped since their time was over", false),
	COUNTER(corrupt, "items dropped since their bytes were wrong", false),
	COUNTER(pinned_bytes, "bytes of items that are pinned", true),
	COUNTER(index_bytes, "memory of the index", true),
	COUNTER(segments, "files", true),
	{ NULL, NULL, 0, false },
};
