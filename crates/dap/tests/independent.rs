//! Messages and encryptions that others made: DAP's, from an aggregator in production, and those of
//! RFC 9180. They run if they are in `shared/vectors` beside the repository. Otherwise each test
//! prints that it was skipped.
#![allow(missing_docs, clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use bigbird_dap::messages::{
    DapReport, Decode, Encode, Extension, Extensions, HpkeCiphertext, HpkeConfig, HpkeConfigList,
    InputShareAad, PlaintextInputShare, ReportId, ReportMetadata, TaskConfiguration, TaskId,
    VdafConfig,
};
use bigbird_dap::{EncryptionError, HpkeKeys, Recipient, VdafKind, VdafParameters};
use serde_json::Value;

fn vectors(name: &str) -> Option<Value> {
    let shared = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/vectors");
    let Ok(text) = fs::read_to_string(shared.join(name)) else {
        println!("skipped: shared/vectors/{name} does not exist beside the repository");
        return None;
    };
    Some(serde_json::from_str(&text).unwrap())
}

fn hex(value: &Value) -> Vec<u8> {
    let text = value.as_str().unwrap();
    let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(byte).collect()
}

/// Decodes a message, and checks that it is encoded as the same bytes again.
fn round_trip<T: Decode + Encode>(bytes: &[u8]) -> T {
    let message = T::get_decoded(bytes).unwrap();
    assert_eq!(message.get_encoded().unwrap(), bytes);
    // Nothing shorter or longer is the same message.
    for length in 0..bytes.len() {
        assert!(T::get_decoded(&bytes[..length]).is_err());
    }
    assert!(T::get_decoded(&[bytes, &[0]].concat()).is_err());
    message
}

#[test]
fn the_messages_of_an_aggregator_in_production_decode() {
    let Some(vectors) = vectors("dap/janus-messages.json") else {
        return;
    };
    let mut read = 0;
    let mut metadata = Vec::new();
    let mut configurations = Vec::new();
    for vector in vectors.as_array().unwrap() {
        let bytes = hex(&vector["hex"]);
        let fields = vector["fields"].as_array().unwrap();
        let field = |at: usize| hex(&fields[at][0]);
        let name = vector["test"].as_str().unwrap();
        let first = fields[0][1].as_str().unwrap();
        match (name, first) {
            ("roundtrip_task_configuration", _) => {
                let task: TaskConfiguration = round_trip(&bytes);
                assert_eq!(task.task_info, field(1));
                assert_eq!(task.leader.as_bytes(), field(3));
                assert_eq!(task.helper.as_bytes(), field(5));
                assert_eq!(task.time_precision.to_be_bytes(), field(6).as_slice());
                assert_eq!(task.min_batch_size.to_be_bytes(), field(7).as_slice());
                assert_eq!(vec![task.batch_mode], field(8));
                assert_eq!(task.vdaf.vdaf_type.to_be_bytes(), field(10).as_slice());
                assert_eq!(task.extensions.as_slice().len(), 1);
                configurations.push(bytes);
            }
            ("roundtrip_batch_config", _) => {
                // A batch mode and its configuration stand within a task.
                let mut task: TaskConfiguration = round_trip(&configurations[0]);
                (task.batch_mode, task.batch_config) = (bytes[0], bytes[3..].to_vec());
                let encoded = task.get_encoded().unwrap();
                assert!(encoded.windows(bytes.len()).any(|part| part == bytes));
                assert_eq!(round_trip::<TaskConfiguration>(&encoded), task);
            }
            ("roundtrip_vdaf_config" | "unknown_vdaf_config_roundtrips", _) => {
                let config: VdafConfig = round_trip(&bytes);
                assert_eq!(config.vdaf_type.to_be_bytes(), field(0).as_slice());
                // Ours has the form of SumVec: length, maximum of eight bytes, chunk length.
                if config.vdaf_type == 3 {
                    let parameters = VdafParameters::parse(&config).unwrap();
                    assert_eq!(parameters.kind, VdafKind::SumVec);
                    assert_eq!((parameters.length, parameters.max_value), (12, 8));
                    assert_eq!(parameters.chunk_length, 14);
                    let ours = VdafParameters {
                        kind: VdafKind::L1BoundSum,
                        ..parameters
                    };
                    assert_eq!(ours.config().configuration, config.configuration);
                } else {
                    assert!(VdafParameters::parse(&config).is_err());
                }
            }
            (
                "roundtrip_task_extension"
                | "unknown_task_extension_roundtrips"
                | "roundtrip_extension",
                _,
            ) => {
                let extension: Extension = round_trip(&bytes);
                assert_eq!(extension.extension_type.to_be_bytes(), field(0).as_slice());
            }
            ("decode_task_configuration_rejects_out_of_order_extensions_on_wire", _) => {
                assert!(Extensions::get_decoded(&bytes).is_err());
            }
            ("decode_unknown_task_extension_type_from_wire", _) => {
                let extensions: Extensions = round_trip(&bytes);
                assert_eq!(extensions.as_slice()[0].extension_type, 0xbeef);
            }
            ("task_configuration_decode_encode_is_byte_preserving", "length") => {
                // The information about a task, and its extensions, each within a task.
                let mut task: TaskConfiguration = round_trip(&configurations[0]);
                if bytes.len() == 5 {
                    task.task_info = bytes[1..].to_vec();
                } else {
                    task.extensions = round_trip(&bytes);
                }
                let encoded = task.get_encoded().unwrap();
                assert!(encoded.windows(bytes.len()).any(|part| part == bytes));
                round_trip::<TaskConfiguration>(&encoded);
            }
            ("roundtrip_report_metadata" | "roundtrip_input_share_aad", _)
            | ("roundtrip_upload_request", "report_id") => {
                let readable: ReportMetadata = round_trip(&bytes);
                assert_eq!(readable.report_id.0.as_slice(), field(0));
                assert_eq!(readable.time.to_be_bytes(), field(1).as_slice());
                metadata.push(readable);
            }
            ("roundtrip_plaintext_input_share", _) => {
                let share: PlaintextInputShare = round_trip(&bytes);
                assert!(matches!(share.payload.as_slice(), b"0123" | b"4567"));
            }
            ("roundtrip_report", _) => {
                let report: DapReport = round_trip(&bytes);
                assert_eq!(report.leader_share.config_id, 42);
                assert_eq!(report.leader_share.encapsulated_key, b"012345");
                assert_eq!(report.leader_share.payload, b"543210");
                assert_eq!(report.helper_share.config_id, 13);
                assert_eq!(report.helper_share.encapsulated_key, b"abce");
                assert_eq!(report.helper_share.payload, b"abfd");
            }
            ("roundtrip_hpke_ciphertext", _) | ("roundtrip_upload_request", _) => {
                let ciphertext: HpkeCiphertext = round_trip(&bytes);
                assert_eq!(vec![ciphertext.config_id], field(0));
                assert_eq!(ciphertext.payload, field(4));
            }
            ("roundtrip_hpke_config", _) => {
                let config: HpkeConfig = round_trip(&bytes);
                assert_eq!(config.kem_id.to_be_bytes(), field(1).as_slice());
                // None of them has a key, so none can be used.
                assert!(Recipient::new(config).is_err());
            }
            ("roundtrip_hpke_config_list", _) => {
                let list: HpkeConfigList = round_trip(&bytes);
                assert_eq!(list.0.len(), 2);
            }
            // A public key is a part of `HpkeConfig`, and what an aggregator answers to an upload
            // is not ours to read.
            ("roundtrip_hpke_public_key" | "roundtrip_upload_response", _) => continue,
            other => panic!("unknown vector {other:?}"),
        }
        read += 1;
    }
    assert_eq!(read, 41);
    // What is authenticated with a share: the task, its configuration, and the report.
    let aad = InputShareAad {
        task_id: TaskId([12; 32]),
        task_configuration: &configurations[0],
        metadata: &metadata[1],
        public_share: b"0123",
    };
    let expected = [
        &[12; 32][..],
        &configurations[0],
        &metadata[1].get_encoded().unwrap(),
        &[0, 0, 0, 4],
        b"0123",
    ];
    assert_eq!(aad.get_encoded().unwrap(), expected.concat());
    assert_eq!(
        metadata[0].report_id,
        ReportId(*b"\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\x10")
    );
}

/// Every message that RFC 9180 encrypted first under its keys opens, and nothing altered does.
#[test]
fn the_vectors_of_hpke_open() {
    let Some(vectors) = vectors("hpke/rfc9180-base.json") else {
        return;
    };
    let mut opened = 0;
    for vector in vectors.as_array().unwrap() {
        let id = |name: &str| u16::try_from(vector[name].as_u64().unwrap()).unwrap();
        let config = HpkeConfig {
            id: 5,
            kem_id: id("kem_id"),
            kdf_id: id("kdf_id"),
            aead_id: id("aead_id"),
            public_key: hex(&vector["pkRm"]),
        };
        let keys = HpkeKeys::new(config, hex(&vector["skRm"])).unwrap();
        let first = &vector["encryptions"][0];
        let (info, aad) = (hex(&vector["info"]), hex(&first["aad"]));
        let message = HpkeCiphertext {
            config_id: 5,
            encapsulated_key: hex(&vector["enc"]),
            payload: hex(&first["ct"]),
        };
        let plaintext = keys.open(&info, &aad, &message).unwrap();
        let expected = first.get("pt").unwrap_or_else(|| &first["plaintext"]);
        assert_eq!(plaintext, hex(expected));
        // Our own encryption to the same keys opens too, and has the same length.
        let ours = keys.recipient().seal(&info, &aad, &plaintext).unwrap();
        assert_eq!(ours.payload.len(), message.payload.len());
        assert_eq!(keys.open(&info, &aad, &ours).unwrap(), plaintext);
        let refused = |info: &[u8], aad: &[u8], message: &HpkeCiphertext| {
            assert!(keys.open(info, aad, message).is_err());
        };
        refused(b"", &aad, &message);
        refused(&info, b"", &message);
        let mut other = message.clone();
        other.payload[0] ^= 1;
        refused(&info, &aad, &other);
        let mut other = message.clone();
        other.encapsulated_key[3] ^= 1;
        refused(&info, &aad, &other);
        let mut other = message.clone();
        other.config_id = 6;
        assert_eq!(
            keys.open(&info, &aad, &other),
            Err(EncryptionError::OtherKey {
                expected: 5,
                got: 6
            })
        );
        opened += 1;
    }
    assert_eq!(opened, 12);
}
