/*
 * Items in: from the stream, or from memory that a client of a unix socket shares, so that a payload is copied once on
 * its way to the file.  That memory may change while we read it: what is stored then is not what its hash says, and
 * nobody will get it.  It cannot shrink, which its seals say.
 */
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/time.h"
#include "store/server_impl.h"

/* ---- memory ---- */

void client_memory_free(struct store_client *c)
{
	if (c->shared)
		munmap((void *)(uintptr_t)c->shared, c->shared_bytes);
	c->shared = NULL;
	c->shared_bytes = 0;
}

static int map_memory(struct store_client *c, int fd, struct ds_err *why)
{
	int seals = fcntl(fd, F_GET_SEALS);
	struct stat st;
	void *p;

	if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &st) || st.st_size < 1)
		return err_set(why, DS_DATA, "shared memory that is none, or can shrink");
	if ((uint64_t)st.st_size > c->sv->o.max_frame)
		return err_set(why, DS_DATA, "shared memory of %lld bytes, the limit is %llu (--max-frame)",
			(long long)st.st_size, (unsigned long long)c->sv->o.max_frame);
	p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		return err_errno(why, DS_OS, "cannot map shared memory");
	client_memory_free(c);
	c->shared = p;
	c->shared_bytes = (size_t)st.st_size;
	return 0;
}

int client_memory(struct store_client *c, uint64_t stream, struct ds_err *err, struct ds_err *why)
{
	int fd = c->local ? frame_reader_take_fd(c->r) : -1, rc;

	if (fd < 0)
		return err_set(why, DS_DATA, "no descriptor came with 'memory'");
	rc = map_memory(c, fd, why);
	close(fd);
	return rc ? rc : client_ok(c, stream, err);
}

/* ---- put ---- */

static const char *const item_keys[] = { "op", "key", "size", "at", "expires", "planes", "xxh", "_",
	"sync", "replace", "shared", "element", "ttl_ns", NULL };

/* An item whose payload is in the frame. */
static int get_framed(const struct frame *f, struct store_item *item, const uint8_t **data, struct ds_err *why)
{
	int rc = store_item_get(f, item, why);

	if (!rc && item->planes)
		rc = err_set(why, DS_DATA, "frame %llu (store): a payload that is taken apart is taken by import only",
			(unsigned long long)f->number);
	if (!rc)
		rc = frame_check_payload(f, why);
	*data = f->data;
	return rc;
}

/* One whose payload is in the client's memory, from its beginning on. */
static int get_shared(const struct store_client *c, const struct frame *f, struct store_item *item,
	const uint8_t **data, struct ds_err *why)
{
	const char *hex;
	size_t n;

	*item = (struct store_item){ .size = UINT64_MAX };
	if (meta_str(f->meta, "key", &hex, &n) != META_OK || !store_key_parse(hex, n, &item->key))
		return err_set(why, DS_DATA, "frame %llu (store): 'key' is not 32 hexadecimal digits",
			(unsigned long long)f->number);
	if (meta_uint(f->meta, "size", &item->size) != META_OK || item->size > c->shared_bytes ||
		meta_uint(f->meta, "expires", &item->expires_ns) == META_TYPE)
		return err_set(why, DS_DATA, "frame %llu (store): 'size' is more than the memory that was shared",
			(unsigned long long)f->number);
	*data = c->shared;
	return 0;
}

int client_put(struct store_client *c, const struct frame *f, struct ds_err *err, struct ds_err *why)
{
	struct store_put_request q;
	enum store_put_result how;
	struct store_item item;
	struct store_put p;
	struct iovec iov;
	const uint8_t *data = NULL;
	uint64_t now = (uint64_t)time_wall_ns();
	int rc = store_put_request_get(f, &q, why);

	if (!rc)
		rc = q.shared ? get_shared(c, f, &item, &data, why) : get_framed(f, &item, &data, why);
	if (rc)
		return rc;
	meta_reset(c->item_meta);
	meta_put_rest(c->item_meta, f->meta, item_keys);
	iov = (struct iovec){ (void *)(uintptr_t)data, (size_t)item.size };
	p = (struct store_put){ .key = item.key, .meta = c->item_meta, .iov = &iov, .iovs = 1,
		.element = (unsigned)q.element, .ttl_ns = q.ttl_ns, .sync = q.sync, .replace = q.replace };
	if (item.expires_ns && !p.ttl_ns)
		p.ttl_ns = item.expires_ns > now ? item.expires_ns - now : 1;
	rc = store_put(c->ss, &p, &how, why);
	if (rc)
		return rc;
	atomic_fetch_add(&c->sv->counts.received_bytes, item.size);
	client_begin_ok(c);
	meta_put_cstr(c->meta, "result", store_put_result_name(how));
	return client_send(c, f->stream, NULL, 0, err);
}
