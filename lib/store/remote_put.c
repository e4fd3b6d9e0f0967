/*
 * Items that go to a ds-kvstore.  Through a unix socket a large payload would be copied twice, and again into the file;
 * so it is copied into memory that both have mapped, and only its meta is sent.
 */
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/mem.h"
#include "store/remote_impl.h"

enum { SHARED_FROM = 64 << 10, SHARED_STEP = 1 << 20 };

static const struct { const char *name; enum store_put_result how; } results[] = {
	{ "stored", STORE_STORED }, { "already", STORE_ALREADY }, { "not_admitted", STORE_NOT_ADMITTED },
};

const char *store_put_result_name(enum store_put_result how)
{
	return results[how].name;
}

/* ---- memory ---- */

void remote_shared_free(struct remote_session *ss)
{
	if (ss->shared)
		munmap(ss->shared, ss->shared_bytes);
	if (ss->shared_fd >= 0)
		close(ss->shared_fd);
	ss->shared = NULL;
	ss->shared_fd = -1;
	ss->shared_bytes = 0;
	ss->told = false;
}

/* False: it cannot be had. */
static bool make_shared(struct remote_session *ss, size_t n)
{
	void *p;

	n = round_up(n, SHARED_STEP);
	remote_shared_free(ss);
	ss->shared_fd = memfd_create("ds-kv", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (ss->shared_fd < 0 || ftruncate(ss->shared_fd, (off_t)n) ||
		fcntl(ss->shared_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
		goto fail;
	p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, ss->shared_fd, 0);
	if (p == MAP_FAILED)
		goto fail;
	ss->shared = p;
	ss->shared_bytes = n;
	return true;
fail:
	remote_shared_free(ss);
	return false;
}

/* The peer is given the memory; what it says against it is no error: *refused then. */
static int tell_shared(struct remote_session *ss, struct ds_err *err)
{
	const struct store_request q = { .op = STORE_OP_MEMORY };
	struct store_answer a;
	int rc;

	meta_reset(ss->meta);
	store_request_put(ss->meta, &q);
	rc = wire_pass(ss, ss->shared_fd, err);
	if (!rc)
		rc = remote_answer(ss, STORE_OP_MEMORY, 0, false, &a, err);
	ss->told = !rc;
	ss->refused = rc && ss->fd >= 0;
	return ss->refused ? 0 : rc;
}

/* Whether a payload of n bytes goes that way. */
static int want_shared(struct remote_session *ss, size_t n, bool *yes, struct ds_err *err)
{
	int rc;

	*yes = ss->r->fds && n >= SHARED_FROM && !ss->refused;
	if (!*yes)
		return 0;
	rc = wire_ready(ss, err); /* a connection that is closed takes the memory with it */
	if (rc)
		return rc;
	*yes = n <= ss->shared_bytes || make_shared(ss, n);
	if (*yes && !ss->told)
		rc = tell_shared(ss, err);
	*yes = ss->told;
	return rc;
}

/* ---- put ---- */

static size_t payload_bytes(const struct store_put *p)
{
	size_t n = 0;

	for (int i = 0; i < p->iovs; i++)
		n += p->iov[i].iov_len;
	return n;
}

static void copy_payload(uint8_t *to, const struct store_put *p)
{
	for (int i = 0; i < p->iovs; i++) {
		if (p->iov[i].iov_len)
			memcpy(to, p->iov[i].iov_base, p->iov[i].iov_len);
		to += p->iov[i].iov_len;
	}
}

int remote_put(struct store_session *base, const struct store_put *p, enum store_put_result *how, struct ds_err *err)
{
	struct remote_session *ss = (struct remote_session *)base;
	const struct store_item item = { .key = p->key, .size = payload_bytes(p) };
	struct store_put_request q = { .sync = p->sync, .replace = p->replace, .element = p->element,
		.ttl_ns = p->ttl_ns };
	struct store_answer a;
	int rc = want_shared(ss, (size_t)item.size, &q.shared, err);

	if (rc)
		return rc;
	if (q.shared)
		copy_payload(ss->shared, p);
	meta_reset(ss->meta);
	store_item_put(ss->meta, &item);
	store_put_request_put(ss->meta, &q);
	if (p->meta)
		meta_put_built(ss->meta, p->meta);
	rc = q.shared ? wire_on(ss, err) : wire_ask(ss, p->iov, p->iovs, true, err);
	if (!rc)
		rc = remote_answer(ss, STORE_OP_PUT, 1, false, &a, err);
	for (size_t i = 0; !rc && i < ARRAY_LEN(results); i++)
		if (strcmp(a.result, results[i].name) == 0) {
			*how = results[i].how;
			return 0;
		}
	if (rc)
		return rc;
	err_set(err, DS_PROTO, "an unknown result of a put");
	return wire_nonsense(ss, err);
}
