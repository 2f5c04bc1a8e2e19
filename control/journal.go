package control

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"
)

const (
	journalFile   = "orders.db"
	journalFormat = "gslbd orders 1"
	aside         = ".new" // ends the name of the file while it is made
)

// The buckets beside those of the kinds of records: what the journal says of itself, and what only this gslbd is to know.
var (
	metaBucket  = []byte("meta")
	marksBucket = []byte("marks")
	formatKey   = []byte("format")
	countKey    = []byte("records") // how many there must be, so that lost ones are missed
)

// A journal keeps records on disk. Once anything in it was found wrong it takes no more, so that what is left of it stays
// as it is for whoever looks into it.
type journal struct {
	path string

	mu    sync.Mutex
	db    *bbolt.DB // nil: it takes no records
	fault string    // why, and what to do
	full  string    // why the last write failed; "": it did not. The next is tried all the same
	again bool      // what was there could be read, and only could not be written anew: worth another try
	count uint64    // of records in it
}

// openJournal opens the journal in a directory and returns what could be read of it: all of it unless fault is set. It
// never fails: see journal.fault.
//
// Each start writes the file anew, aside, and moves it to its place. So what is written to later is sound, whatever has
// befallen the old file where nothing was read from (bbolt has no checksums, and its own check does not survive damaged
// pages), and a crash while the file is made leaves none that looks damaged.
func openJournal(dir string) (j *journal, recs []Record, marks map[string]string) {
	j = &journal{path: filepath.Join(dir, journalFile)}
	recs, marks, err := j.load()
	if err == nil {
		j.again = true
		err = j.make(recs, marks)
	}
	if err != nil {
		j.fault = j.advice(err, len(recs))
	}
	return j, recs, marks
}

// load reads what the file holds: all of it unless it returns an error. Where there is no file, that is nothing.
func (j *journal) load() (recs []Record, marks map[string]string, err error) {
	marks = map[string]string{}
	err = guarded(func() error {
		switch info, err := os.Stat(j.path); {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err == nil && info.Size() == 0: // bbolt would try to write to it
			return errors.New("the file is empty")
		}
		old, err := bbolt.Open(j.path, 0o600, &bbolt.Options{Timeout: time.Second, ReadOnly: true})
		if err != nil {
			return err
		}
		recs, err = j.read(old, marks)
		return errors.Join(err, guarded(old.Close))
	})
	return recs, marks, err
}

// make makes the journal anew with what it is to hold. The caller holds mu, or is alone.
func (j *journal) make(recs []Record, marks map[string]string) error {
	err := guarded(func() error { return j.create(recs, marks) })
	if err == nil {
		j.fault, j.again = "", false
	}
	return err
}

// retry makes the journal, which could not be made when it was opened. There may be another file by now, on a disk that was
// mounted late: found is given what can be read of it, and returns all that the journal is to hold. ok is false if it takes
// records already, if it would lose what cannot be read, and if it cannot be made yet.
func (j *journal) retry(found func([]Record, map[string]string) ([]Record, map[string]string)) (ok bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.again {
		return false
	}
	recs, marks, err := j.load()
	all, marks := found(recs, marks)
	if err != nil {
		j.again = false
		j.fault = j.advice(err, len(recs))
		return false
	}
	return j.make(all, marks) == nil
}

// create makes the journal anew with what it is to hold, and opens it.
func (j *journal) create(recs []Record, marks map[string]string) error {
	made := j.path + aside
	if err := os.Remove(made); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	db, err := bbolt.Open(made, 0o600, &bbolt.Options{Timeout: time.Second})
	if err != nil {
		return err
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		for _, name := range append(kinds[:], string(metaBucket), string(marksBucket)) {
			if _, err := tx.CreateBucket([]byte(name)); err != nil {
				return err
			}
		}
		if _, err := put(tx, recs, marks); err != nil {
			return err
		}
		meta := tx.Bucket(metaBucket)
		return errors.Join(meta.Put(formatKey, []byte(journalFormat)), putCount(meta, uint64(len(recs))))
	})
	if err == nil {
		err = os.Rename(made, j.path)
	}
	if err == nil {
		err = syncDirectory(filepath.Dir(j.path))
	}
	if err != nil {
		return errors.Join(err, db.Close())
	}
	j.db, j.count = db, uint64(len(recs))
	return nil
}

func putCount(meta *bbolt.Bucket, n uint64) error {
	return meta.Put(countKey, binary.BigEndian.AppendUint64(nil, n))
}

func syncDirectory(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// read returns all records that can be read, and what is wrong with the others or with the file.
func (j *journal) read(db *bbolt.DB, marks map[string]string) (recs []Record, err error) {
	tx, err := db.Begin(false)
	if err != nil {
		return nil, err
	}
	defer func() { _ = guarded(tx.Rollback) }()

	info, err := os.Stat(j.path)
	if err != nil {
		return nil, err
	}
	if info.Size() < tx.Size() {
		err = fmt.Errorf("the file is cut off: %d bytes of %d are there", info.Size(), tx.Size())
	}
	err = errors.Join(err, heads(j.path, db.Info().PageSize))
	meta := tx.Bucket(metaBucket)
	if meta == nil {
		return nil, errors.Join(err, errors.New("it is no journal of gslbd"))
	}
	if f := meta.Get(formatKey); string(f) != journalFormat {
		return nil, errors.Join(err, fmt.Errorf("its format is %s and this version of gslbd reads %q", quote(string(f)), journalFormat))
	}

	// What can be read is read first, a kind at a time: a fault in the midst of one must not hide the others.
	var bad int
	var badWhy error
	for _, kind := range kinds {
		err = errors.Join(err, guarded(func() error {
			b := tx.Bucket([]byte(kind))
			if b == nil {
				return fmt.Errorf("the records of kind %q are gone", kind)
			}
			return b.ForEach(func(k, v []byte) error {
				r, err := unseal(v)
				if err == nil && r.key() != kind+"/"+string(k) {
					err = fmt.Errorf("control: it is %s", quote(r.key()))
				}
				if err != nil {
					if bad++; badWhy == nil {
						badWhy = fmt.Errorf("%s %s: %s", kind, quote(string(k)), strings.TrimPrefix(err.Error(), "control: "))
					}
					return nil
				}
				recs = append(recs, r)
				return nil
			})
		}))
	}
	if bad > 0 {
		err = errors.Join(err, fmt.Errorf("%d records cannot be read, the first of them %w", bad, badWhy))
	}
	if c := meta.Get(countKey); len(c) != 8 || binary.BigEndian.Uint64(c) != uint64(len(recs)+bad) {
		err = errors.Join(err, errors.New("records are missing, or there twice"))
	}
	return recs, errors.Join(err, guarded(func() error {
		b := tx.Bucket(marksBucket)
		if b == nil {
			return errors.New("the marks are gone")
		}
		return b.ForEach(func(k, v []byte) error {
			marks[string(k)] = string(v)
			return nil
		})
	}))
}

// heads reports whether both of the file's first two pages are whole. bbolt takes the newer one that is, so that a
// damaged one would silently take back the last order. A crash cannot leave one half-written: it is within one sector.
func heads(path string, pageSize int) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	const header, body = 16, 56 // of a page; of what the checksum behind it is of
	b := make([]byte, body+8)
	for i := range 2 {
		if _, err := f.ReadAt(b, int64(i*pageSize+header)); err != nil {
			return err
		}
		sum := fnv.New64a()
		sum.Write(b[:body])
		if sum.Sum64() != binary.NativeEndian.Uint64(b[body:]) {
			return fmt.Errorf("page %d is damaged: the last order may be missing", i)
		}
	}
	return nil
}

// advice writes what is wrong with the journal and what to do, for a person at night.
func (j *journal) advice(err error, kept int) string {
	what := strings.ReplaceAll(err.Error(), "\n", "; ")
	switch {
	case errors.Is(err, bbolterrors.ErrTimeout):
		return fmt.Sprintf("journal of orders %s: another process holds the file; new orders are refused. Stop that process, then restart gslbd", j.path)
	case j.again:
		return fmt.Sprintf("journal of orders %s: %s; the %d records in it are in force, new orders are refused. Make the directory writable by gslbd and free space on it; it is tried again every %s", j.path, what, kept, retryEvery)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Sprintf("journal of orders %s: %s; no order in it is in force, new orders are refused. Let gslbd read and write the file, then restart gslbd", j.path, what)
	}
	return fmt.Sprintf("journal of orders %s: %s; the %d records that could be read are in force, new orders are refused. Move the file away and restart gslbd: with etcd the orders come back from there, else give them again",
		j.path, what, kept)
}

// write keeps the records, and marks of this gslbd alone (an empty value takes one away), all of them or none. When it
// returns nil they are on the disk.
func (j *journal) write(recs []Record, marks map[string]string) error {
	return j.update(func(tx *bbolt.Tx) (int, error) { return put(tx, recs, marks) })
}

func put(tx *bbolt.Tx, recs []Record, marks map[string]string) (more int, err error) {
	for _, r := range recs {
		kind, id := r.kind()
		b := tx.Bucket([]byte(kind))
		if b.Get([]byte(id)) == nil {
			more++
		}
		if err := b.Put([]byte(id), seal(r)); err != nil {
			return 0, err
		}
	}
	b := tx.Bucket(marksBucket)
	for k, v := range marks {
		err := b.Delete([]byte(k))
		if v != "" {
			err = b.Put([]byte(k), []byte(v))
		}
		if err != nil {
			return 0, err
		}
	}
	return more, nil
}

// remove takes records out.
func (j *journal) remove(recs []Record) error {
	return j.update(func(tx *bbolt.Tx) (int, error) {
		less := 0
		for _, r := range recs {
			kind, id := r.kind()
			b := tx.Bucket([]byte(kind))
			if b.Get([]byte(id)) != nil {
				less++
			}
			if err := b.Delete([]byte(id)); err != nil {
				return 0, err
			}
		}
		return -less, nil
	})
}

// update runs do, which says how many records it added, in one transaction.
func (j *journal) update(do func(tx *bbolt.Tx) (int, error)) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.db == nil {
		return fmt.Errorf("control: %w: %s", ErrUnavailable, j.fault)
	}
	count := j.count
	faulted := true
	err := guarded(func() error {
		err := j.db.Update(func(tx *bbolt.Tx) error {
			more, err := do(tx)
			if err != nil {
				return err
			}
			count = uint64(int64(j.count) + int64(more))
			return putCount(tx.Bucket(metaBucket), count)
		})
		faulted = false
		return err
	})
	if faulted { // the database may be locked for ever: it is left as it is
		j.db = nil
		j.fault = j.advice(err, int(j.count))
		return fmt.Errorf("control: %w: %s", ErrUnavailable, j.fault)
	}
	if err != nil {
		why := strings.ReplaceAll(err.Error(), j.path+aside, j.path) // it was opened by that name
		j.full = fmt.Sprintf("journal of orders %s: the last order could not be kept: %s; free space on the disk, then give the order again", j.path, why)
		return fmt.Errorf("control: %w: %s", ErrUnavailable, j.full)
	}
	j.count, j.full = count, ""
	return nil
}

// problem says what is wrong; "": nothing.
func (j *journal) problem() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.fault != "" {
		return j.fault
	}
	return j.full
}

// close gives up the file. It may be called more than once.
func (j *journal) close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.again = false
	if j.db == nil {
		return nil
	}
	db := j.db
	j.db, j.fault = nil, fmt.Sprintf("journal of orders %s: gslbd is shutting down", j.path)
	return guarded(db.Close)
}

// guarded runs f and returns its panics and memory faults as errors: bbolt trusts the file that it maps.
func guarded(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the file is damaged (%v)", p)
		}
	}()
	return f()
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// seal is what is kept of a record: its JSON, and on a second line a checksum, for bbolt has none of its own.
func seal(r Record) []byte {
	b := r.encode()
	return fmt.Appendf(b, "\n%08x", crc32.Checksum(b, castagnoli))
}

func unseal(v []byte) (Record, error) {
	i := bytes.LastIndexByte(v, '\n')
	if i < 0 || string(v[i+1:]) != fmt.Sprintf("%08x", crc32.Checksum(v[:i], castagnoli)) {
		return Record{}, errors.New("it is cut off or altered")
	}
	return decodeRecord(v[:i])
}
