/*
 * The frame reader on any bytes: twice the same, once with payloads to memory of ours; every tensor row and the getters
 * of every message.  Three quarters of the inputs have their lengths and checksums made right first, so that mutations
 * get past the CRC.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/json.h"
#include "ep/plan.h"
#include "frame/hello.h"
#include "frame/internal.h"
#include "frame/messages.h"
#include "frame/messages_unit.h"
#include "tests/fuzz/repair.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_DATA = 1 << 20 };

static volatile uint32_t seen; /* so that what is read is read */

/* A load, and a plan that becomes a placement; sent on, it is the same or as wrong. */
static void look_at_unit(const struct frame *f)
{
	struct load_message load;
	struct plan_message plan;
	struct plan_shape shape = { 2, 4, 3 };
	struct placement *p, *q;
	uint64_t epoch;
	struct ds_err err;
	void *bytes;
	size_t n;
	int rc;

	if (load_get(f, &load, &err) == 0)
		seen += (uint32_t)load.counts[0] + (uint32_t)load_peer_at(f, load.world - 1).sent_bytes;
	if (plan_get(f, &plan, &err) == 0 && plan.layers < 100)
		shape = (struct plan_shape){ plan.layers, plan.experts, plan.ranks };
	rc = plan_placement(f, &shape, &p, &epoch, &err);
	if (plan_pack(f, &bytes, &n, &err) == 0) {
		int same = plan_unpack(bytes, n, &shape, &q, &epoch, &err);

		if (f->type == FRAME_PLAN && (same != rc || !p != !q))
			abort();
		placement_free(q);
		free(bytes);
	}
	placement_free(p);
}

static void look(const struct frame *f)
{
	struct frame_tensor t;
	struct ds_err err;
	struct hello h;
	struct request req;
	struct kv_block kv;
	struct sampled first[2];
	struct prefilled pre;
	const float *hidden;
	struct token tok;
	struct done done;
	struct error_message em;
	const uint32_t *ids;
	uint32_t sum = 0;
	size_t n;

	for (size_t i = 0; i < frame_tensor_count(f); i++)
		if (frame_tensor_at(f, i, &t, &err) == 0 && t.nbytes)
			sum += f->data[t.offset] + f->data[t.offset + t.nbytes - 1];
	frame_check_payload(f, &err);
	hello_get(f, &h, &err);
	request_get(f, &req, &err);
	if (request_tokens(f, &ids, &n, &err) == 0)
		sum += ids[0] + ids[n - 1];
	kv_block_get(f, &kv, &t, &err);
	prefilled_get(f, first, 1, &pre, &err);
	prefilled_get(f, first, 2, &pre, &err);
	if (prefilled_hidden(f, 16, &hidden, &err) == 0 && hidden)
		sum += hidden[15] > 0.0f;
	token_get(f, &tok, &err);
	done_get(f, &done, &err);
	error_get(f, &em, &err);
	look_at_unit(f);
	seen += sum;
}

static void look_at_meta(const struct frame *f)
{
	struct buf out = { 0 };
	struct jw w;

	jw_init(&w, &out);
	meta_json(&w, f->meta);
	buf_free(&out);
}

static int read_once(int fd, bool into, unsigned *frames)
{
	static uint8_t dst[MAX_DATA];
	struct frame_reader *r;
	enum frame_event ev = FRAME_AGAIN;
	struct frame *f;
	struct ds_err err;
	int rc;

	lseek(fd, 0, SEEK_SET);
	rc = frame_reader_new(&r, fd, "fuzz", MAX_DATA, &err);
	while (!rc && ev != FRAME_EOF) {
		rc = frame_reader_next(r, &ev, &f, &err);
		if (!rc && ev == FRAME_HEAD && into)
			frame_reader_into(r, dst);
		if (!rc && ev == FRAME_BODY) {
			look(f);
			look_at_meta(f);
			++*frames;
		}
	}
	if (rc && (err.code != rc || !err.text[0]))
		abort();
	if (!rc && !frame_reader_ended(r))
		abort(); /* silent truncation */
	frame_reader_free(r);
	return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	int fd = memfd_create("fuzz", MFD_CLOEXEC), a, b;
	uint8_t *copy = malloc(size + 1);
	unsigned frames[2] = { 0, 0 };
	struct meta_doc *d;
	struct ds_err err;

	if (fd < 0 || !copy)
		abort();
	if (meta_parse(&d, data, size, &err) == 0)
		meta_doc_free(d);
	if (size)
		memcpy(copy, data, size);
	if (size % 4)
		repair(copy, size);
	if (write(fd, copy, size) != (ssize_t)size)
		abort();
	a = read_once(fd, false, &frames[0]);
	b = read_once(fd, true, &frames[1]);
	if (a != b || frames[0] != frames[1])
		abort();
	close(fd);
	free(copy);
	return 0;
}
