/* Frames: what is written is read; layout, alignment, limits, forwarding, compression, non-blocking descriptors. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <xxhash.h>

#include "frames.h"
#include "frame/internal.h"

static void test_layout(void)
{
	size_t n;
	uint8_t *p = sample(&n, 4096);
	struct frame_reader *r;
	enum frame_event ev = FRAME_AGAIN;
	struct frame *f;
	struct ds_err err;
	int fd = fd_of(p, n), rc = frame_reader_new(&r, fd, "t", 0, &err);
	bool aligned = true, seq = true, heads = true;
	unsigned frames = 0;

	tap_ok(crc32_add(0, "123456789", 9) == 0xcbf43926, "CRC-32 of the check string");
	while (!rc) {
		rc = frame_reader_next(r, &ev, &f, &err);
		if (rc || ev == FRAME_EOF)
			break;
		if (ev == FRAME_HEAD) {
			heads = heads && f->data == NULL;
			continue;
		}
		aligned = aligned && f->offset % 64 == 0 && (44 + f->meta_len + 5) % 64 == 0 && f->data_len % 64 == 0 &&
			(uintptr_t)f->data % 64 == 0;
		seq = seq && f->seq == frames && f->number == frames;
		frames++;
		if (f->type == FRAME_TENSOR) {
			struct frame_tensor t;

			tap_ok(!frame_tensor_get(f, "kv", &t, &err) && t.ndim == 2 && t.shape[1] == 512 &&
					t.nbytes == 4096 && !strcmp(t.dims[1], "dim") && t.type == DT_F32,
				"tensor row of frame %u", frames);
			tap_ok(((const float *)(const void *)f->data)[7] == 0.5f, "tensor value");
			tap_ok(!frame_check_payload(f, &err), "payload hash");
			tap_ok(!(f->flags & FRAME_ZSTD), "flags after decompression");
		}
	}
	tap_ok(!rc && frames == 5, "all frames are read");
	tap_ok(aligned, "frames and payloads lie at multiples of 64");
	tap_ok(seq, "numbers rise by one");
	tap_ok(heads, "no payload before the body event");
	tap_ok(frame_reader_ended(r) && frame_reader_idle(r), "ended, idle");
	tap_ok(frame_reader_bytes(r) == n, "bytes counted");
	frame_reader_free(r);
	close(fd);
	free(p);
}

/* Every padding amount: meta lengths of all residues, and empty meta. */
static void test_padding(void)
{
	int fd = memfd_create("pad", MFD_CLOEXEC);
	struct meta_builder *b = meta_new();
	struct frame_writer *w;
	struct ds_err err;
	char text[200];
	unsigned frames;
	int rc = frame_writer_new(&w, fd, "pad", &err);

	memset(text, 'a', sizeof text);
	if (!rc)
		rc = frame_write(w, FRAME_TEXT, 0, 1, NULL, NULL, 0, false, &err);
	for (size_t k = 0; k < 150 && !rc; k++) {
		struct iovec iov[2] = { { text, k }, { text, k / 2 } };

		meta_reset(b);
		meta_put_str(b, "t", text, k);
		rc = frame_write(w, FRAME_TEXT, 0, 1, b, iov, 2, k % 2, &err);
	}
	for (unsigned k = 0; k < 40 && !rc; k++) { /* over fifteen pairs the map's header grows */
		meta_reset(b);
		for (unsigned i = 0; i < k; i++) {
			char key[16];

			snprintf(key, sizeof key, "k%u", i);
			meta_put_uint(b, key, i);
		}
		rc = frame_write(w, FRAME_TEXT, 0, 1, b, NULL, 0, false, &err);
	}
	if (!rc)
		rc = frame_write_end(w, &err);
	tap_ok(!rc && lseek(fd, 0, SEEK_CUR) % 64 == 0, "frames of every meta length end at multiples of 64");
	lseek(fd, 0, SEEK_SET);
	tap_ok(!read_all(fd, 0, &frames, &err) && frames == 192, "and are read back");
	tap_ok(frame_write(w, FRAME_TEXT, 0, 1, NULL, NULL, 0, false, &err) == DS_BUG, "nothing follows the end frame");
	frame_writer_free(w);
	meta_free(b);
	close(fd);
}

static void test_into(void)
{
	size_t n, got = 0;
	uint8_t *p = sample(&n, 3 << 20), *dst = malloc(3 << 20);
	struct frame_reader *r;
	enum frame_event ev = FRAME_AGAIN;
	struct frame *f;
	struct ds_err err;
	int fd = fd_of(p, n), rc = frame_reader_new(&r, fd, "t", 0, &err);

	while (!rc && ev != FRAME_EOF) {
		rc = frame_reader_next(r, &ev, &f, &err);
		if (!rc && ev == FRAME_HEAD && f->data_len == 3 << 20) {
			memset(dst, 0, 3 << 20);
			frame_reader_into(r, dst);
		}
		if (!rc && ev == FRAME_BODY && f->type == FRAME_TENSOR)
			got += f->data == dst && !frame_check_payload(f, &err) && ((float *)(void *)dst)[7] == 0.5f;
	}
	tap_ok(!rc && got == 2, "payloads, plain and compressed, go where the user wants them");
	frame_reader_free(r);
	close(fd);
	free(dst);
	free(p);
}

/* Forwarded frames are the same but for their numbers; unknown meta keys travel on. */
static void test_forward(void)
{
	size_t n, m;
	uint8_t *p = sample(&n, 4096), *q;
	int fd = fd_of(p, n), out = memfd_create("out", MFD_CLOEXEC);
	struct frame_reader *r;
	struct frame_writer *w;
	enum frame_event ev = FRAME_AGAIN;
	struct frame *f;
	struct ds_err err;
	int rc = frame_reader_new(&r, fd, "t", 0, &err);
	unsigned frames;

	if (!rc)
		rc = frame_writer_new(&w, out, "out", &err);
	while (!rc && ev != FRAME_EOF) {
		rc = frame_reader_next(r, &ev, &f, &err);
		if (!rc && ev == FRAME_BODY)
			rc = f->type == FRAME_END ? frame_write_end(w, &err) : frame_forward(w, f, &err);
	}
	q = bytes_of(out, &m);
	lseek(out, 0, SEEK_SET);
	tap_ok(!rc && !read_all(out, 0, &frames, &err) && frames == 5, "a forwarded stream is whole");
	tap_ok(m > n && memcmp(p, q, 64) == 0, "its frames are the same");
	frame_reader_free(r);
	frame_writer_free(w);
	close(fd);
	close(out);
	free(p);
	free(q);
}

static void *drain_slowly(void *arg)
{
	int fd = *(int *)arg;
	unsigned *frames = calloc(1, sizeof *frames);
	struct ds_err err;

	if (read_all(fd, 0, frames, &err))
		*frames = 0;
	return frames;
}

static void test_nonblocking(void)
{
	int sv[2], rc;
	size_t size = 1 << 20;
	char *data = calloc(size, 1);
	struct iovec iov = { data, size };
	struct frame_writer *w;
	struct ds_err err;
	pthread_t t;
	void *frames;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, sv))
		tap_bail("socketpair");
	fcntl(sv[0], F_SETFL, O_NONBLOCK);
	rc = frame_writer_new(&w, sv[0], "peer", &err);
	for (int i = 0; i < 5 && !rc; i++)
		rc = frame_write(w, FRAME_TENSOR, 0, 1, NULL, &iov, 1, true, &err);
	if (!rc)
		rc = frame_write_end(w, &err);
	tap_ok(!rc && frame_writer_queued(w) > 4 * size, "what a full socket does not take is queued");
	pthread_create(&t, NULL, drain_slowly, &sv[1]);
	while (!rc && frame_writer_queued(w)) {
		struct pollfd pfd = { .fd = sv[0], .events = POLLOUT };

		poll(&pfd, 1, 1000);
		rc = frame_writer_flush(w, &err);
	}
	shutdown(sv[0], SHUT_WR);
	pthread_join(t, &frames);
	tap_ok(!rc && *(unsigned *)frames == 6, "and arrives");
	free(frames);
	close(sv[1]);
	rc = frame_writer_new(&w, (frame_writer_free(w), sv[0]), "peer", &err);
	rc = frame_write(w, FRAME_TEXT, 0, 1, NULL, NULL, 0, false, &err);
	tap_ok(rc == DS_SIGPIPE, "a reader that has gone is DS_SIGPIPE");
	tap_ok(frame_write(w, FRAME_TEXT, 0, 1, NULL, NULL, 0, false, &err) == DS_SIGPIPE, "for ever");
	frame_writer_free(w);
	close(sv[0]);
	free(data);
}

/* A reader on a non-blocking descriptor, fed byte by byte. */
static void test_trickle(void)
{
	size_t n;
	uint8_t *p = sample(&n, 512);
	int fds[2], rc;
	struct frame_reader *r;
	enum frame_event ev = FRAME_AGAIN;
	struct frame *f;
	struct ds_err err;
	unsigned frames = 0, again = 0;

	if (pipe(fds))
		tap_bail("pipe");
	rc = frame_reader_new(&r, fds[0], "t", 0, &err);
	frame_reader_polled(r, true);
	for (size_t i = 0; i < n && !rc; i++) {
		if (write(fds[1], p + i, 1) != 1)
			tap_bail("pipe");
		do {
			rc = frame_reader_next(r, &ev, &f, &err);
			frames += !rc && ev == FRAME_BODY;
		} while (!rc && ev != FRAME_AGAIN);
		again += !rc;
	}
	tap_ok(!rc && frames == 5 && again == n, "a stream that comes byte by byte");
	close(fds[1]);
	tap_ok(!rc && !frame_reader_next(r, &ev, &f, &err) && ev == FRAME_EOF, "and its end");
	frame_reader_free(r);
	close(fds[0]);
	free(p);
}

/* A reader that hashes while it reads, whatever pieces the bytes come in and wherever they go. */
static void test_hashes(void)
{
	size_t n;
	uint8_t *p = sample_of(&n, 1 << 20, false), *place = malloc(1 << 21);
	int fd = fd_of(p, n), rc;
	struct frame_reader *r;
	enum frame_event ev = FRAME_AGAIN;
	struct frame *f;
	struct ds_err err;
	unsigned hashed = 0, right = 0;

	rc = frame_reader_new(&r, fd, "t", 0, &err);
	frame_reader_hashes(r, true);
	while (!rc && ev != FRAME_EOF) {
		rc = frame_reader_next(r, &ev, &f, &err);
		if (!rc && ev == FRAME_HEAD && f->type == FRAME_KV && !hashed)
			frame_reader_into(r, place);
		if (!rc && ev == FRAME_BODY && f->data_len) {
			hashed += f->hashed;
			right += f->hashed && f->hash == XXH3_64bits(f->data, f->data_len) &&
				!frame_check_payload(f, &err);
		}
	}
	tap_ok(!rc && hashed >= 2 && right == hashed, "payloads are hashed while they are read (%u)", hashed);
	frame_reader_free(r);
	close(fd);
	free(p);
	p = sample_of(&n, 4096, true);
	fd = fd_of(p, n);
	rc = frame_reader_new(&r, fd, "t", 0, &err);
	frame_reader_no_zstd(r, true);
	for (ev = FRAME_AGAIN; !rc && ev != FRAME_EOF;)
		rc = frame_reader_next(r, &ev, &f, &err);
	tap_ok(rc == DS_DATA && strstr(err.text, "compressed"), "a reader that takes nothing compressed: %s", err.text);
	frame_reader_free(r);
	close(fd);
	free(p);
	free(place);
}

static void test_hello(void)
{
	struct hello a = { .program = "ds-a",
		.version = "0.1",
		.model = "m1",
		.vocab = 10,
		.quant = "fp8",
		.kv = { DT_BF16, 64, 3, 576 } };
	struct hello b = a, got;
	struct meta_builder *m = meta_new();
	int fd = memfd_create("hello", MFD_CLOEXEC), rc;
	struct frame_writer *w;
	struct frame_reader *r;
	enum frame_event ev = FRAME_AGAIN;
	struct frame *f;
	struct ds_err err;

	hello_via(&a, "ds-token", "0.1");
	hello_via(&a, "ds-prefill", "0.1");
	tap_is_str(a.via, "ds-token/0.1,ds-prefill/0.1", "via");
	hello_put(m, &a);
	rc = frame_writer_new(&w, fd, "t", &err);
	if (!rc)
		rc = frame_write(w, FRAME_HELLO, 0, 0, m, NULL, 0, false, &err);
	lseek(fd, 0, SEEK_SET);
	rc = frame_reader_new(&r, fd, "t", 0, &err);
	while (!rc && ev != FRAME_BODY)
		rc = frame_reader_next(r, &ev, &f, &err);
	if (!rc)
		rc = hello_get(f, &got, &err);
	a.world = 1;
	tap_ok(!rc && !memcmp(&got.kv, &a.kv, sizeof a.kv) && !strcmp(got.via, a.via) && got.vocab == 10,
		"hello survives the way");
	tap_ok(!hello_check(&a, &b, "p", &err), "equal hellos agree");
	strcpy(b.model, "m2");
	tap_ok(hello_check(&a, &b, "p", &err) == DS_PROTO && strstr(err.text, "m1") && strstr(err.text, "m2"),
		"another model is refused with both values");
	b.model[0] = 0;
	tap_ok(!hello_check(&a, &b, "p", &err), "what a side does not say is not compared");
	b.kv.dim = 512;
	tap_ok(hello_check(&a, &b, "p", &err) == DS_PROTO && strstr(err.text, "576"), "another KV layout is refused");
	for (int i = 0; i < 60; i++)
		hello_via(&a, "ds-program", "0.1.2");
	tap_ok(strlen(a.via) < sizeof a.via && !strstr(a.via, "ds-token") && strstr(a.via, "ds-program/0.1.2"),
		"via has a limit");
	frame_reader_free(r);
	frame_writer_free(w);
	meta_free(m);
	close(fd);
}

/* For tests of programs: writes the sample capture to a file. */
static int write_sample(const char *path, bool plain)
{
	size_t n;
	uint8_t *p = plain ? sample_of(&n, 4096, false) : sample(&n, 4096);
	FILE *f = fopen(path, "wb");
	bool ok = f && fwrite(p, 1, n, f) == n;

	if (f)
		ok = fclose(f) == 0 && ok;
	free(p);
	return ok ? 0 : 1;
}

int main(int argc, char **argv)
{
	if (argc > 2 && strcmp(argv[1], "--sample") == 0)
		return write_sample(argv[2], argc > 3);
	signal(SIGPIPE, SIG_IGN);
	test_layout();
	test_padding();
	test_into();
	test_forward();
	test_nonblocking();
	test_trickle();
	test_hashes();
	test_hello();
	tap_ok(frame_stream_id("a", 1) == XXH3_64bits("a", 1), "stream ids");
	return tap_done();
}
