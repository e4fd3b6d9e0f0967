/* Frames that lie in memory or in files: made, parsed, sent from there; descriptors that travel beside frames. */
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "frames.h"

enum { PAYLOAD = 300000 };

static uint8_t payload[PAYLOAD];

static struct meta_builder *meta_of(const char *text)
{
	struct meta_builder *b = meta_new();

	if (!b)
		tap_bail("no memory");
	meta_put_cstr(b, "text", text);
	meta_put_bin(b, "bytes", "\0\xff\x80", 3);
	return b;
}

/* The bytes that frame_write makes of it, behind nothing. */
static uint8_t *written(const struct meta_builder *b, size_t *n)
{
	int fd = memfd_create("w", MFD_CLOEXEC);
	struct iovec iov = { payload, PAYLOAD };
	struct frame_writer *w;
	struct ds_err err;
	uint8_t *p;

	if (frame_writer_new(&w, fd, "w", &err) || frame_write(w, FRAME_STORE, 0, 7, b, &iov, 1, true, &err))
		tap_bail("cannot write");
	p = bytes_of(fd, n);
	frame_writer_free(w);
	close(fd);
	return p;
}

static void test_encode(void)
{
	struct meta_builder *b = meta_of("one");
	struct iovec iov[2] = { { payload, 1000 }, { payload + 1000, PAYLOAD - 1000 } };
	struct frame_front front;
	struct frame_writer *w;
	struct ds_err err;
	size_t n;
	uint8_t *p = written(b, &n);
	int rc = frame_writer_new(&w, -1, "none", &err);

	if (!rc)
		rc = frame_encode(w, FRAME_STORE, 0, 7, 0, b, iov, 2, true, &front, &err);
	tap_ok(!rc && n == front.n + PAYLOAD + front.pad && memcmp(p, front.p, front.n) == 0,
		"an encoded front is that of a written frame");
	tap_ok(!rc && frame_front_bytes(front.p) == front.n, "its length is told by its head");
	rc = frame_encode(w, FRAME_STORE, 0, 7, 5, b, NULL, 0, true, &front, &err);
	tap_ok(!rc && front.pad == 0 && front.n % FRAME_ALIGN == 0, "a front without payload");
	tap_ok(frame_front_bytes((const uint8_t *)"\x9a\xa4" "DSF2 and 40 bytes more than anyone would read") == 0,
		"of no frame there is none");
	frame_writer_free(w);
	meta_free(b);
	free(p);
}

static void test_parse(void)
{
	struct meta_builder *b = meta_of("two");
	struct frame_parser *q;
	struct ds_err err;
	struct frame f;
	const uint8_t *bin;
	size_t n, len, front, refused = 0;
	uint8_t *p = written(b, &n), text[10];
	const char *s;

	if (frame_parser_new(&q, &err))
		tap_bail("no memory");
	front = frame_front_bytes(p);
	tap_ok(!frame_parse(q, p, n, &f, &err) && f.type == FRAME_STORE && f.stream == 7 && f.data == p + front &&
		memcmp(f.data, payload, PAYLOAD) == 0 && !frame_check_payload(&f, &err), "a whole frame");
	tap_ok(meta_str(f.meta, "text", &s, &len) == META_OK && len == 3 && memcmp(s, "two", 3) == 0, "its meta");
	tap_ok(meta_bin(f.meta, "bytes", &bin, &len) == META_OK && len == 3 && memcmp(bin, "\0\xff\x80", 3) == 0 &&
		meta_bin(f.meta, "text", &bin, &len) == META_TYPE && meta_bin(f.meta, "no", &bin, &len) == META_ABSENT,
		"bytes in its meta");
	tap_ok(!frame_parse(q, p, front, &f, &err) && !f.data && f.data_len >= PAYLOAD, "a front alone");
	for (size_t i = 0; i < front; i++) {
		uint8_t *cut = malloc(i ? i : 1); /* so that reading beyond it is seen */

		memcpy(cut, p, i);
		refused += frame_parse(q, cut, i, &f, &err) == DS_DATA;
		free(cut);
	}
	tap_ok(refused == front, "every shorter one is refused: %zu of %zu", refused, front);
	refused = 0;
	for (size_t i = 0; i < front * 8; i++) {
		p[i / 8] ^= (uint8_t)(1 << i % 8);
		refused += frame_parse(q, p, n, &f, &err) != 0;
		p[i / 8] ^= (uint8_t)(1 << i % 8);
	}
	tap_ok(refused == front * 8, "every flipped bit is seen: %zu of %zu", refused, front * 8);
	memcpy(text, p, sizeof(text));
	text[5] = '2';
	tap_ok(frame_parse(q, text, sizeof(text), &f, &err) == DS_DATA, "ten bytes are no head");
	frame_parser_free(q);
	meta_free(b);
	free(p);
}

/* Reads all frames at fd in a child; its exit status is 0 where they are `want` whole ones with the payload. */
static pid_t reads(int fd, int other, unsigned want)
{
	pid_t pid = fork();
	struct frame_reader *r;
	enum frame_event ev;
	struct frame *f;
	struct ds_err err;
	unsigned n = 0;

	if (pid)
		return pid;
	close(other);
	if (frame_reader_new(&r, fd, "r", 0, &err))
		_exit(1);
	while (!frame_reader_next(r, &ev, &f, &err) && ev != FRAME_EOF)
		if (ev == FRAME_BODY && f->type == FRAME_STORE)
			n += f->stream == 100 + n && memcmp(f->data, payload, PAYLOAD) == 0 &&
				!frame_check_payload(f, &err);
	_exit(frame_reader_ended(r) && n == want ? 0 : 2);
}

static void test_file(void)
{
	struct meta_builder *b = meta_of("three");
	struct frame_parser *q;
	struct frame_writer *w;
	struct ds_err err;
	struct frame f;
	size_t n;
	uint8_t *p = written(b, &n);
	int fd = fd_of(p, n), sv[2], status = -1, rc;
	uint64_t front = frame_front_bytes(p);
	pid_t pid;

	if (frame_parser_new(&q, &err) || frame_parse(q, p, front, &f, &err) ||
	    socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv) || frame_writer_new(&w, sv[0], "s", &err))
		tap_bail("set-up");
	pid = reads(sv[1], sv[0], 3);
	close(sv[1]);
	rc = frame_write(w, FRAME_TEXT, 0, 1, b, NULL, 0, false, &err);
	for (uint64_t i = 0; i < 3 && !rc; i++)
		rc = frame_forward_file(w, &f, f.flags, 100 + i, fd, front, &err);
	if (!rc)
		rc = frame_write_end(w, &err);
	close(sv[0]);
	tap_ok(!rc && waitpid(pid, &status, 0) == pid && status == 0, "payloads from a file, between other frames");
	frame_writer_free(w);

	if (pipe(sv) || frame_writer_new(&w, sv[1], "p", &err))
		tap_bail("set-up");
	pid = reads(sv[0], sv[1], 1);
	close(sv[0]);
	rc = frame_forward_file(w, &f, f.flags, 100, fd, front, &err);
	if (!rc)
		rc = frame_write_end(w, &err);
	close(sv[1]);
	tap_ok(!rc && waitpid(pid, &status, 0) == pid && status == 0, "the same through a pipe");
	frame_writer_free(w);
	frame_parser_free(q);
	meta_free(b);
	free(p);
	close(fd);
}

/* A file that is shorter than it was said, and a reader that takes nothing. */
static void test_file_fails(void)
{
	struct timeval tv = { .tv_usec = 50000 };
	struct meta_builder *b = meta_of("four");
	struct frame_parser *q;
	struct frame_writer *w;
	struct ds_err err, again;
	struct frame f;
	size_t n;
	uint8_t *p = written(b, &n);
	uint64_t front = frame_front_bytes(p);
	int fd = fd_of(p, n), sv[2], rc = 0;

	if (frame_parser_new(&q, &err) || frame_parse(q, p, front, &f, &err) ||
	    socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv) || frame_writer_new(&w, sv[0], "s", &err) ||
	    setsockopt(sv[0], SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv)))
		tap_bail("set-up");
	for (int i = 0; i < 100 && !rc; i++)
		rc = frame_forward_file(w, &f, f.flags, 1, fd, front, &err);
	tap_ok(rc == DS_TEMP, "a reader that takes nothing: %s", err.text);
	tap_ok(frame_forward_file(w, &f, f.flags, 1, fd, front, &again) == DS_TEMP && !strcmp(err.text, again.text),
		"and so for ever");
	frame_writer_free(w);
	close(sv[0]);
	close(sv[1]);

	if (ftruncate(fd, (off_t)front + 100) || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv) ||
	    frame_writer_new(&w, sv[0], "s", &err))
		tap_bail("set-up");
	rc = frame_forward_file(w, &f, f.flags, 1, fd, front, &err);
	tap_ok(rc == DS_DATA && frame_write_end(w, &again) == DS_DATA, "a file that is too short: %s", err.text);
	frame_writer_free(w);
	close(sv[0]);
	close(sv[1]);
	frame_parser_free(q);
	meta_free(b);
	free(p);
	close(fd);
}

static void test_descriptors(void)
{
	struct meta_builder *b = meta_of("five");
	struct frame_reader *r;
	struct frame_writer *w;
	enum frame_event ev = FRAME_AGAIN;
	struct ds_err err;
	struct frame *f;
	unsigned frames = 0;
	int sv[2], fds[FRAME_FDS + 2], rc = 0, good = 0, got;
	char c;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv) || frame_writer_new(&w, sv[0], "s", &err) ||
	    frame_reader_new(&r, sv[1], "r", 0, &err))
		tap_bail("set-up");
	frame_reader_fds(r, true);
	for (int i = 0; i < FRAME_FDS + 2 && !rc; i++) {
		c = (char)('a' + i);
		fds[i] = fd_of(&c, 1);
		rc = frame_write(w, FRAME_TEXT, 0, 1, b, NULL, 0, false, &err);
		if (!rc)
			rc = frame_write_fd(w, FRAME_STORE, 2, b, fds[i], &err);
	}
	if (!rc)
		rc = frame_write_end(w, &err);
	close(sv[0]);
	tap_ok(!rc && frame_reader_take_fd(r) == -1, "none before it came");
	while (!rc && !(rc = frame_reader_next(r, &ev, &f, &err)) && ev != FRAME_EOF) {
		frames += ev == FRAME_BODY;
		if (ev != FRAME_BODY || f->type != FRAME_STORE || frames > 4)
			continue;
		got = frame_reader_take_fd(r);
		good += got >= 0 && pread(got, &c, 1, 0) == 1 && c == (char)('a' + frames / 2 - 1);
		close(got);
	}
	tap_ok(!rc && good == 2, "descriptors come with their frames");
	for (good = 0; (got = frame_reader_take_fd(r)) >= 0; good++) {
		if (pread(got, &c, 1, 0) != 1 || c != (char)('c' + good))
			break;
		close(got);
	}
	tap_ok(good == FRAME_FDS, "those that nobody takes wait in their order");
	for (int i = 0; i < FRAME_FDS + 2; i++)
		close(fds[i]);
	frame_reader_free(r);
	frame_writer_free(w);
	meta_free(b);
	close(sv[1]);
}

int main(void)
{
	signal(SIGPIPE, SIG_IGN);
	for (size_t i = 0; i < PAYLOAD; i++)
		payload[i] = (uint8_t)(i * 2654435761u >> 13);
	test_encode();
	test_parse();
	test_file();
	test_file_fails();
	test_descriptors();
	return tap_done();
}
